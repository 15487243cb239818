"""Models of PyTorch: taking them in, rebuilding them, exporting them. The only place with torch, transformers, optimum.

What needs torch runs in a child process (`child`): the parent stays light, and a crash of a library is an error with a
remedy rather than the end of the build. An artifact of kind `torch` is plain files and `record.json`; see `record`.
"""
