"""Trusted code that runs inside the sandbox on hostile text. This file runs there too: it imports nothing."""
