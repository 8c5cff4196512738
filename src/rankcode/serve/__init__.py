"""`rankcode serve`: a web page that runs networks in the browser, and a service for many clients."""
