"""Do trained CNNs decide the same as attention, and back?"""
