"""Programs in Go that the tests run: found, or built once and kept.

What lives here: nothing to import. ``finding`` looks for them and keeps one build at a time,
``building`` is the build, ``natscli`` the recipe of the nats command line (that of Kubernetes is
in ``tests.support.kube.build``), ``fixtures`` what becomes of tests that can't have one.
`.ci/go-binaries` runs this package before there is an environment, so all but the fixtures
keep to the standard library.
"""
