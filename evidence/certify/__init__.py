"""Which faults does a certificate find?"""
