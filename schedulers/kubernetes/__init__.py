"""The Kubernetes backend: one pod a worker.

What lives here: nothing to import; the modules say what they hold. Pure are ``quantity``,
``names``, ``identity``, ``podmodel``, ``overlay``, ``config``, ``reading``, ``template``,
``manifest``, ``pods`` and ``phases``. Around them: ``connecting``, ``client`` and ``pacing``
(requests), ``watch`` and ``view`` (what is there), ``creating``, ``keeper`` and ``owner`` (what
is done), ``launcher`` and ``scheduler`` (all of it together).
"""
