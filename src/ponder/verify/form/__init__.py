"""How a text is written: its form, length, language and the constraints it was given."""
