from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "wincount._native",
            sources=["csrc/module.c", "csrc/words.c", "csrc/numbers.c"],
            depends=["csrc/wincount.h"],
            include_dirs=["csrc"],
        )
    ]
)
