"""Models in a browser and behind an address: a service of the law's answers, and a page that explores a model.

``create_app`` (:mod:`snefy_ldl.serve.app`) and ``run`` (:mod:`snefy_ldl.serve.server`) need the extra ``serve``; the
page (:mod:`snefy_ldl.serve.explorer`) needs nothing beyond the library.
"""
