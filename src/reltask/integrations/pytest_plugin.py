"""The pytest plugin: one fixture, `reltask`, for the app that the ini option `reltask_app` names.

    [tool.pytest.ini_options]
    reltask_app = "shop.tasks:app"

pytest imports this module in every project where reltask is installed, so it imports nothing until
a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from reltask.testing.kit import TestKit


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option."""
    parser.addini("reltask_app", "The app that the fixture `reltask` rebinds: shop.tasks:app or shop:create_app()")


@pytest.fixture
def reltask(request: pytest.FixtureRequest) -> Iterator[TestKit]:
    """The app of `reltask_app` on a temporary database and in virtual time, driven by the test."""
    from reltask.cli.target import load_app  # noqa: PLC0415 - see above
    from reltask.errors import ConfigurationError  # noqa: PLC0415
    from reltask.testing.kit import TestKit  # noqa: PLC0415

    reference = request.config.getini("reltask_app")
    if not reference:
        pytest.fail('Set reltask_app in the configuration of pytest: reltask_app = "shop.tasks:app".', pytrace=False)
    try:
        app = load_app(reference)
    except ConfigurationError as error:
        pytest.fail(f"reltask_app: {error}", pytrace=False)
    with TestKit(app) as kit:
        yield kit
