"""An HTTP service that answers questions about predicted distributions, and a web page that explores a model.

``create_app`` (:mod:`snefy_ldl.serve.app`) and ``run`` (:mod:`snefy_ldl.serve.server`) need the extra ``serve``; the
page (:mod:`snefy_ldl.serve.explorer`) needs nothing beyond the library.
"""
