"""A real kube-apiserver for tests, a helper that plays kubelet, and a proxy with faults.

What lives here: nothing to import. ``build`` finds or builds the binaries, ``apiserver`` and
``scheduler`` run them, ``rest`` talks to them, ``kubelet`` plays the nodes (``bodies`` is what
it writes), ``faultproxy`` breaks the way there by ``faults``, ``fixtures`` is what tests ask
for.
"""
