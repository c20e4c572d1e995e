"""Fit a framework's constants to published step times.

    python -m benchmarks.fit_software TABLE.yaml ... CONSTANT ... [--every N]

Takes the rows of the group ``fitted``, one of N, from the constants that the tables' scenarios have, and prints the
section ``software`` with the errors on both halves. The packaged tables' sidecars name their constants.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from scenarios.calibration.software_fit import SoftwareFit, fit_software, measured_steps


def main() -> None:
    """Read the command line, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="TABLE.yaml or CONSTANT")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    tables = [Path(name) for name in arguments.names if name.endswith(".yaml")]
    constants = [name for name in arguments.names if not name.endswith(".yaml")]
    steps = measured_steps(tables)
    fit = fit_software(steps, constants, every=arguments.every, progress=lambda line: print(line, file=sys.stderr))
    print_fit(fit, np.array([step.fitted for step in steps]))


def print_fit(fit: SoftwareFit, is_fitted: np.ndarray) -> None:
    """Print constants as a scenario has them, and how far the two halves are off."""
    print("software:")
    for name, value in fit.constants.items():
        print(f"  {name.removesuffix('_s')}: " + (f"{value * 1e6:.4g} us" if name.endswith("_s") else f"{value:.4g}"))
    for label, chosen in (("fitted", is_fitted), ("held out", ~is_fitted)):
        residuals = fit.residuals[chosen]
        errors = np.abs(np.expm1(residuals))
        print(
            f"# {label}: {chosen.sum()} rows, mean error {errors.mean():.2%}, 95th percentile "
            f"{np.quantile(errors, 0.95):.2%}, root mean square of logarithms {np.sqrt(np.mean(residuals**2)):.2%}"
        )


if __name__ == "__main__":
    main()
