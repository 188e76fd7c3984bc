"""TAP for tests that are one long story: each step says whether it held."""
import sys

number = [0]
failed = [False]


def say(good, what, text=""):
    """A step, and if it failed the end of what was said. @return good"""
    number[0] += 1
    print("%sok %d - %s" % ("" if good else "not ", number[0], what))
    if not good:
        failed[0] = True
        print("".join("# %s\n" % line for line in text.splitlines()[-60:]), end="")
    sys.stdout.flush()
    return good
