"""The command line. The only package that imports both `mmcorl` and `eval_suite`."""
