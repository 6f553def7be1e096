"""The INCEPTIONN engine as hardware, and what a network card that has one needs. Nothing here is loaded until it is used."""
