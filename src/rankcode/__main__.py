"""`rankcode`, and `python -m rankcode`: handles Ctrl-C before anything is imported that takes time."""

from rankcode.cli.ctrl_c import EndedByCtrlC, end


def main() -> None:
    try:
        with EndedByCtrlC():
            from rankcode.cli.main import main as run
        run()
    except KeyboardInterrupt:  # between the two
        end()


if __name__ == "__main__":
    main()
