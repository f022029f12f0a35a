"""How large is the error of attention of finite sharpness?"""
