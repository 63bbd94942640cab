"""The engine of one process, without Spark. Entry: `local`."""
