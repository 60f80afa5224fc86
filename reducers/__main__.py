"""``python -m reducers`` prints the table of reducers."""

from reducers.table import table

if __name__ == "__main__":
    print(table())
