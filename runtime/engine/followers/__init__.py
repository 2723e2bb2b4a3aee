"""What follows the state of each batch slot."""
