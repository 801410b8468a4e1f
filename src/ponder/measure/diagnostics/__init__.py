"""What is wrong with a run or its data: training health, contamination of the test set, signs of reflection."""
