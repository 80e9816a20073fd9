"""Work on a Ray cluster: Ray Data predicts, Ray Train fits; rows are Parquet files that all workers can read."""
