import serving  # a neighbour, as in `python app.py`

if __name__ == "__main__":
    serving.main()
