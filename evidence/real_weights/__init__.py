"""Networks whose trained weights ship inside packages, converted both ways and certified."""
