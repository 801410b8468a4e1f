"""`ponder serve`: an OpenAI-compatible server in which effort, strategy and budget are compute.

A parser in `api` makes a `GenerationRequest`; `reasoner.reason` runs it and yields `events`; a writer in `api` turns
the events into JSON or server-sent events. `service.Service` is what the handlers share.
"""
