"""Models of PyTorch: taken in, rebuilt, exported. The only place with torch, transformers and optimum.

What needs torch runs in a child process (`child`): the parent stays light, and a crash of a library is an error
with a remedy rather than the end of the build. An artifact of kind `torch` is plain files and `record.json`; see
`record`.
"""
