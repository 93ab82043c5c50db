CASES={}
def save(case, folder): pass
def load(case, folder): pass
