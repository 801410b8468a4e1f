"""Finding the one answer that a completion gives, and the words around it that take it back."""
