import decimal  # noqa: F401 - what the servers of a launch have in common

import serving  # a neighbour, as in `python app.py`

if __name__ == "__main__":
    serving.main()
