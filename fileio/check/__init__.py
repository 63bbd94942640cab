"""The check of a store: does it keep the promises that commits stand on? Entry: `probe`."""
