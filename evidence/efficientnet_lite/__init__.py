"""Do EfficientNet-Lite networks with trained weights decide the same as attention, and back?"""
