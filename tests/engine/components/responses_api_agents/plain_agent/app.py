import decimal  # noqa: F401 - what the servers of a launch have in common

from resources_servers.plain.serving import main  # another component, through the roots

if __name__ == "__main__":
    main()
