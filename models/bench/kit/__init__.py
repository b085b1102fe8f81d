"""`make cuda`: everything that a GPU has to show, in one run, one table and one result file.

`python -m staticrt.models.bench.kit --device cuda` runs it; `--device sim` runs the same code on the simulated
accelerator. Exit status: 0 all passed, 1 something failed, 2 no such device.
"""
