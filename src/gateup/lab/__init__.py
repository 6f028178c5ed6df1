"""The lab: a local web app in which the block is looked at, changed and practised.

Three layers: `data_*.py` compute what a page shows, without any web framework, from the library's
own figures; `words/` has each page's texts in both languages; `pages/` draw. A page is a module in
pages/, its texts in words/, and an entry in registry.py.
"""
