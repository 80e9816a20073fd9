"""An HTTP service that answers questions about predicted distributions, and a web page that explores a model.

``create_app`` (:mod:`snefy_ldl.apps.serve.app`) needs the extra ``serve``; the page
(:mod:`snefy_ldl.apps.serve.explorer`) needs nothing beyond the library.
"""
