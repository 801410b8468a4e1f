"""Tasks about pictures, drawn with numpy alone: shapes to count, find and outline, mazes and clocks."""
