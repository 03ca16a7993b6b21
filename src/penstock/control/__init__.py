"""The control plane: measure -> model -> policy -> plan -> apply, read together by `loop`.

Pure code: facts in, decisions with reasons out. It reads no clock, opens no file, imports neither pyspark nor the data
plane; Spark and the simulator drive the same functions.
"""
