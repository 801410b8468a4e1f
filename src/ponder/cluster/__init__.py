"""Where the processes of a job run: on this machine, or placed by Ray on the machines of a cluster."""
