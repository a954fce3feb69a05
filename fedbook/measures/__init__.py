"""What single chapters measure, and rules of other people's code that they compare with."""
