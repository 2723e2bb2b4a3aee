"""The page of `snapexport serve`: a chat in the browser, which reads files and shows what is kept.

    route   answers GET /, with a policy that lets the page load nothing else
    kept    what an answer's caches hold of its prompt, as parts of the text
    page.html, page.css, page.js, kept.js    one document when they are served

The page is a client of /v1/chat/completions like any other.
"""
