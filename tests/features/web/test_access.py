"""Access to the page: only the browser that has used the link, from the page's own origin, on every route."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.routing import BaseRoute, Mount, Route

from support.launch import Launch
from support.web_pages import Server
from tflaunch.features.web import app

pytestmark = pytest.mark.web


def requests_to(route: BaseRoute) -> list[tuple[str, str]]:
    """Return a request per method of a route."""
    if isinstance(route, Mount):
        return [("GET", f"{route.path}/{path.name}") for path in app.STATIC.iterdir()]
    assert isinstance(route, Route)
    return [(method, route.path.replace("{run}", "any")) for method in sorted(route.methods or ())]


ROUTES = [request for route in app.make_app().routes for request in requests_to(route)]
EVERY = [*ROUTES, ("GET", "/nowhere"), ("OPTIONS", "/api/live"), ("DELETE", "/api/runs/any")]


assert {("GET", "/"), ("POST", "/api/runs/any/stop"), ("GET", "/static/app.js")} <= set(ROUTES)
assert len(ROUTES) > 25


@pytest.mark.parametrize(("method", "path"), EVERY, ids=" ".join)
def test_nothing_is_answered_without_the_cookie_or_to_another_origin(server: Server, method: str, path: str) -> None:
    """Nor with a wrong one, nor with a wrong or used token; POST not even from our own origin.

    With the cookie, not to another site, another port of this machine, or a name that was rebound to it.
    """
    own = f"http://localhost:{server.port}"
    assert server.ask(method, path, Cookie="", Origin=own).status == 403
    wrong, token = server.cookie[:-3] + "abc", server.cookie.partition("=")[2]
    assert server.ask(method, f"{path}?token={token}", Cookie=wrong, Origin=own).status == 403
    foreign = [
        {"Origin": "http://evil.example"},
        {"Origin": f"http://localhost:{server.port + 1}"},
        {"Origin": "null"},
        {"Origin": own.replace("http", "https")},
        {"Host": f"evil.example:{server.port}", "Origin": f"http://evil.example:{server.port}"},
        {"Host": "localhost.evil.example"},
        {"Host": ""},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ]
    for headers in foreign:
        answer = server.ask(method, path, **headers)
        assert answer.status == 403, headers
    if method not in ("GET", "HEAD"):
        assert server.ask(method, path).status == 403  # a form of an old browser names no origin


def test_a_link_from_elsewhere_leads_to_the_page_only(server: Server) -> None:
    """A user may follow a link in a chat; no site may load our data, and the page loads no other."""
    follow = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert server.ask("GET", "/", **follow).status == 200
    assert server.ask("GET", "/static/app.js", **follow).status == 403
    assert server.ask("GET", "/", Host=f"127.0.0.1:{server.port}").status == 200
    assert server.ask("GET", "/", Host="localhost:4000").status == 200  # the near end of a tunnel
    for answer in (server.ask("GET", "/"), server.ask("GET", "/static/app.js"), server.ask("GET", "/", Cookie="")):
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_link_works_once(place: Launch) -> None:
    """Then the next one is printed; both browsers stay signed in, and no others are."""
    server = Server(place)
    try:
        used = urlsplit(server.link)
        first = server.sign_in()
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        earlier = server.cookie
        assert server.ask("GET", f"/?{used.query}", Cookie="").status == 403
        server.sign_in()
        assert server.cookie != earlier
        for known in (earlier, server.cookie):
            assert server.ask("GET", "/", Cookie=known).status == 200
    finally:
        server.stop()


def test_a_run_is_named_in_full(server: Server, failed_run: str) -> None:
    """No path leads out of the directory of runs, and no beginning of a name is enough for a request."""
    for name in (failed_run[:-1], "..%2F..", "%2Fetc", "a" * 300):
        assert server.ask("GET", f"/api/runs/{name}/ran").status in (404, 409)
    assert server.ask("GET", "/static/../app.py").status == 404
    assert server.ask("GET", "/static/%2e%2e/app.py").status == 404


def test_without_the_server_there_is_one_sentence(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "uvicorn.py").write_text("raise ModuleNotFoundError('hidden', name='uvicorn')")
    launch.env["PYTHONPATH"] = str(tmp_path / "hidden")
    for arguments in (["web"], ["up", "--web", launch.shell("true", workers=1)]):
        refused = launch.run(*arguments, code=2)
        expected = "tflaunch: the page needs uvicorn, which is not installed: pip install 'tflaunch[web]'\n"
        assert refused.stderr == expected
