"""The answers of `plan` and `show` as tables, JSON, one HTML page, or formulas with numbers."""
