"""The HTTP APIs: for each a parser from JSON to a `GenerationRequest`, and a writer from events to JSON."""
