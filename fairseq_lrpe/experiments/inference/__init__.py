"""Loading a trained model to predict, generate and classify."""
