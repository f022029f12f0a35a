"""Networks whose trained weights ship inside packages, converted, and compared by what their task finds."""
