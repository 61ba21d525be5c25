"""What is loaded into a serving process: attach, recorder, remedies; bounded and undoable."""
