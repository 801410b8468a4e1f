"""One definition of each network family, used by the sampler and the learner alike."""
