"""When are depthwise convolutions slow in torch, and which layout avoids it?"""
