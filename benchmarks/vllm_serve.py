"""``vllm serve`` without the console script: ``python -m benchmarks.vllm_serve ARGUMENTS``.

The script asks for a distribution of the name ``vllm``, which the CPU build is not. Unlike
``vllm.entrypoints.openai.api_server`` the command can run several API servers and data-parallel replicas.
"""


def main() -> None:
    """Upstream's own command."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parser = FlexibleArgumentParser()
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    args = parser.parse_args()
    command.validate(args)
    command.cmd(args)


if __name__ == "__main__":
    main()
