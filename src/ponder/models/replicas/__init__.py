"""Sampler processes behind one policy: started, fed with weights, asked, watched and restarted."""
